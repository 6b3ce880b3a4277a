"""Words that keys are made of, and words to be counted: a table of our own, of common English words.

`key(n)` names one of 173,420 pairs (``brave-otter``). None of COUNTED is part of another one, so that looking for one
as a substring of an answer, as RULER scores, finds that one alone.
"""

from __future__ import annotations


def _table(text: str) -> tuple[str, ...]:
    return tuple(text.split())


ADJECTIVES = _table("""
able active agile alert amber ample ancient angry arid atomic autumn aware awful azure bare basic bitter blank bleak
blond blunt bold brave bright brisk broad bronze brown bumpy busy calm candid careful casual cheap cheerful chilly
civic clean clear clever cloudy clumsy coarse cold comic common cool copper coral cosmic costly cozy crazy creamy
crimson crisp crooked cruel curious curly curved dainty damp daring dark dear decent deep delicate dense dim distant
dizzy double drab dreamy dry dull dusty eager early earnest eastern easy elastic elder elegant empty endless equal
exact exotic faded faint fair famous fancy fast fatal feeble fertile festive fierce final fine firm flat fluffy foggy
fond formal fragile frail frank free fresh friendly frosty frozen full funny fuzzy gaunt generous gentle giant gifted
glad gloomy glossy golden good grand grave gray great greedy green grim grumpy handy happy hardy harsh hasty hazy
hearty heavy hidden high hollow holy honest huge humble humid hungry icy ideal idle immense indigo inner ivory jagged
jolly joyful jumpy keen kind large late lavish lazy lean level light likely little lively local lofty lonely long
loose loud lovely loyal lucid lucky lunar magic major mellow merry mighty mild minor misty mobile modern modest moist
muddy mute narrow native neat nervous new nimble noble noisy northern novel numb oblong obscure odd old olive orange
orderly outer oval pale patient peaceful perfect placid plain plump polar polite poor precise pretty prime private
proper proud public pure purple quaint quick quiet rapid rare raw ready recent red regal rich rigid ripe robust rocky
rough round rowdy royal rugged rural rusty sacred sad safe salty sandy scarlet secret serene serious severe shady
shaky shallow sharp shiny short shy silent silky silver simple sincere sleek sleepy slender slim slow small smart
smooth snowy sober social soft solar solid sour southern spare sparse spicy spiral square stable stark steady steep
stern stiff stormy stout strange strict strong sturdy subtle sudden sullen summer sunny super sweet swift tall tame
tart tender tense thick thin thirsty tidy timid tiny tired tough tranquil true typical unique upper urban useful usual
vague vain valid vast velvet violet vital vivid warm weak weary western wet white whole wicked wide wild winter wise
witty wooden worthy yellow young zealous
""")

NOUNS = _table("""
acorn actor album alley almond anchor ankle antler apple apron arrow artist atlas attic badge badger bagel bakery
balcony ballad bamboo banana banjo banker banner barley barn barrel basket beach beacon beak beard beaver beetle belt
bench berry bicycle bishop blanket blossom boat bonfire bottle boulder bowl branch bread breeze brick bridge brook
broom brush bucket buffalo bugle butter button cabbage cabin cactus camel camera canal candle cannon canoe canyon
captain caravan carbon carpet carrot castle cattle cedar cellar cello cement chain chair chalk chapel cheese cherry
chess chicken chimney church circus citizen clarinet cliff clock cloud clover coast cobbler coffee comet compass corn
cottage cotton cousin crab cradle crane crayon cricket crown crystal cup curtain cushion dagger daisy dancer deer
desert diamond dinner doctor dolphin donkey door dragon drawer drum duck dune eagle easel echo elbow elephant elm
ember emperor engine envelope falcon farmer feather fence fern ferry fiddle field finger flag flame flask flour flower
flute forest fork fossil fountain fox frost fruit galaxy gallery garden garlic gate geyser giraffe glacier glass glove
goat goose grain grape grass gravel guitar hammer hamster harbor harp hatch hawk hazel helmet herald heron highway
hill hinge honey hook horizon horse hotel house hunter iceberg igloo inlet insect iris iron island jacket jaguar
jasmine jeans jelly jewel jockey journal judge jungle juniper kettle keyboard kitchen kite kitten knight ladder lagoon
lake lamp lantern lark lawyer leaf leather lemon leopard letter library lily lime linen lion lizard lobster locket
lotus lumber lynx magnet maple marble market marsh mason meadow melon merchant metal meteor mirror mitten monkey moon
mosaic moss moth motor mountain mouse muffin museum mushroom nail napkin needle nest nickel noodle north notebook
nurse nutmeg oak oasis ocean office onion opera orchard orchid organ otter oven owl oyster paddle palace panda panther
paper parade parrot pasture peach peacock pearl pebble pelican pencil penguin pepper piano picnic pigeon pillow pilot
pine planet plate plow plum pocket poet pond pony poplar potato prairie prince printer puddle pumpkin puppet puzzle
quarry queen quilt rabbit raccoon radio railway rain raven ribbon rice river road robin rocket roof rooster rope rose
ruby rudder saddle sailor salad salmon salt sand sapphire scarf scholar school scissors sculptor seal shadow shark
sheep shelf shell shepherd ship shoe shovel shrimp singer skate slate sled smoke snail snow soap sock sofa soldier
sparrow spider spoon spruce squirrel stamp star statue steam stone stove stream sugar swan sweater sword table tailor
teacher temple tent theater thimble thistle thunder ticket tiger timber toast tomato torch tower tractor trail train
trumpet tulip tunnel turkey turtle umbrella uncle valley vase vessel village vine violin volcano wagon waiter wallet
walnut walrus water weasel whale wheat wheel whistle willow window wizard wolf woodpecker wrist yacht yard zebra
zipper
""")

COUNTED = _table("""
accept acorn active admire advance advise afternoon agency album alert almond amber amuse anchor ancient angry ankle
announce answer antler appear apple apron argue argument arid army arrange arrive artist atlas atomic attack attic
autumn average avoid aware awful azure badger bagel baggage bakery balance balcony ballad bamboo banana banjo banker
banner bare barley barn barrel basic basket battle beach beacon beak beard beauty beaver become beetle begin behave
believe belong belt bench benefit berry bicycle bishop bitter blanket bleak blond blossom blunt boat bold bonfire
borrow bother bottle bottom boulder bowl branch brave bread breathe breeze brick bridge bright bring brisk broad
bronze brook broom brown brush bucket budget buffalo bugle build bumpy business busy butter button cabbage cabin
cactus calm camel camera canal candid candle cannon canoe canyon captain caravan carbon careful carpet carrot carry
castle casual catch cattle cedar celebrate cellar cello cement century chain chair chalk chance change chapel cheap
cheerful cheese cherry chess chicken chilly chimney choose church circus citizen civic clarinet clean clear clever
cliff climate climb clock cloudy clover clumsy coarse coast cobbler coffee cold collect college comet comic committee
common compass complain concert confess consider continue cool copper copy coral cosmic costly cottage cotton cousin
cozy crab cradle crane crayon crazy creamy create cricket crimson crisp crooked crown cruel crystal culture curious
curly curtain curved cushion dagger dainty daisy damp dancer danger daring dark daughter dear debate decent decide
deep deer defend degree delicate deliver dense describe desert design dialogue diamond dinner discover disease
distance distant divide dizzy doctor dolphin donkey door double dozen drab dragon drawer dreamy drum duck dull dune
dusty eager eagle early earnest eastern easy echo economy educate effort elastic elbow elder election elegant elephant
emperor employ empty encourage endless energy engine enjoy envelope equal escape evening evidence exact examine
example exist exotic expand explain explore factory faded failure faint fair falcon family famous fancy farmer fasten
fatal feather feature feeble fence fern ferry fertile festival festive fiction fiddle field fierce final fine finger
firm flag flame flask flat flour flower fluffy flute foggy follow fond forest forget forgive fork formal fortune
fossil fountain fragile frail frank freedom fresh friendly frosty frozen fruit full funny future fuzzy galaxy gallery
garden garlic gate gather gaunt generous gentle geyser giant gifted giraffe glacier glad glass gloomy glossy glove
goat golden good goose govern grain grand grape grass gravel gray great greedy green grim grumpy guess guitar habit
hammer hamster handy happen happy harbor hardy harsh harvest hasty hatch hawk hazel hazy health hearty heavy helmet
herald heron hidden highway hinge history holiday hollow holy honest honey hook horizon horse hotel house huge humble
humid humor hungry hunter hurry husband iceberg ideal idle igloo imagine immense improve include increase indigo
industry inform inlet insect interest introduce invent invite iris iron island ivory jacket jagged jaguar jasmine
jeans jelly jewel jockey join jolly journal journey joyful judge jumpy jungle juniper justice keen kettle keyboard
kind kingdom kitchen kite kitten kneel knight knowledge ladder lagoon lake lamp language lantern large lark laugh
lavish lawyer lazy leader leaf learn leather lemon leopard lesson letter level liberty library light likely lily lime
linen lion listen little lively lizard lobster local locket lofty logic lonely loose lotus lovely loyal lucid lucky
lumber lunar luxury lynx machine magic magnet major manage maple marble market marsh mason meadow meaning measure
medicine mellow melon memory mention merchant merry metal meteor method mighty mild minor minute mirror misty mitten
mobile modern modest moist moment monkey moon morning mosaic moss moth motor mountain mouse muddy muffin multiply
muscle museum mushroom mute napkin narrow nation native nature neat needle neighbor nervous nickel nimble noble noisy
noodle northern notebook notice novel number nurse nutmeg oasis obey object oblong obscure observe ocean offer office
olive onion operate opinion orange orbit orchard orchid orderly organ otter outer oval oven oyster paddle paint palace
pale panda panther paper parade parent parrot passage pasture patient pattern payment peaceful peach peacock pearl
pebble pelican pencil penguin people pepper perfect period person persuade piano picnic picture pigeon pillow pilot
pine placid planet plant plate pleasure plow plump pocket poet polar polish polite pond pony poor poplar position
potato poverty power practice prairie precise prefer prepare pressure pretty price prime prince printer private
problem process profit promise proper protect proud provide public puddle pumpkin punish puppet pure purple purpose
puzzle quaint quality quarry queen question quick quiet quilt rabbit raccoon radio railway rapid rare raven ready
realize reason receive recent recognize record reduce refuse regal region relation religion remember repair repeat
replace reply rescue result return reward rhythm ribbon rich rigid rinse ripe river robin robust rocket rocky roof
rooster rose rough round rowdy royal ruby rudder rugged rural rusty sacred saddle safe sailor salad salmon salty sandy
sapphire satisfy scarf scarlet scatter scholar school science scissors sculptor seal search season second secret
serene serious settle severe shadow shady shaky shallow shape shark sharp sheep shelf shell shepherd shiny ship shiver
shoe short shout shovel shrimp silence silent silky silver simple sincere singer skate skill slate sled sleek sleepy
slender slim slow small smart smile smoke smooth snail snowy soap sober social society sock sofa soft solar soldier
solid solve soul sour southern spare sparkle sparrow sparse speech spicy spider spiral spirit spoon spruce square
squeeze squirrel stable stamp stark statue steady steam steep stiff stone stormy stout stove strange stream strength
stretch strict strong student sturdy subtle succeed success sudden sugar suggest sullen summer sunny super support
surprise suspect swan sweater sweet swift sword symbol system tailor talent tall tame tart teacher tease temple tender
tense tent thank theater theory thick thimble thin thirsty thistle thought thunder ticket tidy tiger timber timid tiny
tired title toast tomato tongue torch tough tower tractor trail train tranquil travel treaty tremble trouble true
trumpet truth tulip tunnel turkey turtle typical umbrella uncle unique unite upper urban useful usual vague vain valid
valley value vanish variety vase vast velvet vessel victory village vine violet violin virtue vision visit vital vivid
voice volcano volume wagon waiter wallet walnut walrus wander warm water weak wealth weary weasel weather western
whale wheat wheel whisper whistle white whole wicked wide wild willow window winter wisdom wise witty wizard wolf
wonder wooden woodpecker worry worthy wrestle wrist yacht yard yellow young youth zealous zebra zipper
""")

PAIRS = len(ADJECTIVES) * len(NOUNS)


def key(number: int) -> str:
    """Pair `number`, 0 <= number < PAIRS."""
    return f"{ADJECTIVES[number % len(ADJECTIVES)]}-{NOUNS[number // len(ADJECTIVES)]}"
