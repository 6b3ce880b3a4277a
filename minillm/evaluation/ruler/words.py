"""Words that keys are made of, and words to be counted: a table of our own, of common English words.

`key(n)` names one of 173,420 pairs (``brave-otter``). None of COUNTED is part of another one, so that looking for one
as a substring of an answer, as RULER scores, finds that one alone.
"""

from __future__ import annotations

from collections.abc import Iterable


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

MORE = _table("""
accept admire advance advise afternoon agency amuse announce answer appear argue argument army arrange arrive attack
average avoid baggage balance battle beauty become begin behave believe belong benefit borrow bother bottom breathe
bring budget build business carry catch celebrate century chance change choose climate climb collect college committee
complain concert confess consider continue copy create culture danger daughter debate decide defend degree deliver
describe design dialogue discover disease distance divide dozen economy educate effort election employ encourage energy
enjoy escape evening evidence examine example exist expand explain explore factory failure family fasten feature
festival fiction follow forget forgive fortune freedom future gather govern guess habit happen harvest health history
holiday humor hurry husband imagine improve include increase industry inform interest introduce invent invite join
journey justice kingdom kneel knowledge language laugh leader learn lesson liberty listen logic luxury machine manage
meaning measure medicine memory mention method minute moment morning multiply muscle nation nature neighbor notice
number obey object observe offer operate opinion orbit paint parent passage pattern payment people period person
persuade picture plant pleasure polish position poverty power practice prefer prepare pressure price problem process
profit promise protect provide punish purpose quality question realize reason receive recognize record reduce refuse
region relation religion remember repair repeat replace reply rescue result return reward rhythm rinse satisfy scatter
science search season second settle shape shiver shout silence skill smile society solve soul sparkle speech spirit
squeeze strength stretch student succeed success suggest support surprise suspect symbol system talent tease thank
theory thought title tongue travel treaty tremble trouble truth unite value vanish variety victory virtue vision visit
voice volume wander wealth weather whisper wisdom wonder worry wrestle youth
""")
"""Words that are counted beside those of keys."""


def _apart(words: Iterable[str]) -> tuple[str, ...]:
    """Those of four letters and more of which none is part of another one, in alphabetical order."""
    long = [word for word in sorted(set(words)) if len(word) >= 4]
    return tuple(word for word in long if not any(word in other for other in long if other != word))


COUNTED = _apart((*ADJECTIVES, *NOUNS, *MORE))

PAIRS = len(ADJECTIVES) * len(NOUNS)


def key(number: int) -> str:
    """Pair `number`, 0 <= number < PAIRS."""
    return f"{ADJECTIVES[number % len(ADJECTIVES)]}-{NOUNS[number // len(ADJECTIVES)]}"
