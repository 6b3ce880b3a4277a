"""Suite `ruler`: the 13 tasks of RULER (Hsieh et al. 2024, arXiv 2404.06654), made here, at exact lengths, offline.

Wording, word tables and generators are our own, so scores are not NVIDIA's; docs/ruler.md says where they differ.
"""
