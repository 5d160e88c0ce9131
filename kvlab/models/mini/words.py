"""Words of the synthetic prompts. Each is one token of mini's tokenizer after a space."""
# ruff: noqa: SIM905 (a list of two hundred quoted words is harder to read)

NAMES = tuple(
    """
    king girl boy horse law heart mother father house door voice face room lady knight queen prince duke uncle
    aunt sister brother wife husband daughter friend enemy captain doctor soldier servant stranger maid squire
    officer judge author poet prisoner gentleman lord army troops battle sword shield crown castle church
    prison garden forest street road village town city country island river sea ship boat shore wall chamber
    table chair bed window gate floor corner letter book paper story song music dream dinner breakfast bread
    wine tea water fire cloud rain wind sun moon earth ground field hill tree bird cat dog whale silver gold
    iron glass stone wood coat hat dress ring watch pocket box card bell pen gun carriage coach journey
    winter summer spring evening morning night day hour week month year minute money fortune business work
    school society company party crowd nation people world heaven spirit soul mind memory thought reason truth
    faith virtue justice honour glory courage passion pride pity joy grief sorrow fear hope love hate peace
    war danger trouble pain sleep death life birth youth marriage family child infant master mistress reader
    beast creature body head hair eye ear nose mouth tongue teeth neck shoulder arm hand breast leg foot blood
    smile laugh cry breath secret history adventure reply subject object idea opinion promise advice
    """.split()
)

ADJECTIVES = tuple(
    """
    blue green red white black bright cold warm old young deep wide strong weak quick slow quiet silent gentle
    proud wise noble poor rich sweet bitter hard soft dark pale fresh heavy light small large great little
    happy sad brave bold calm clean clear
    """.split()
)
