"""The lexicon of the grammar: words by what they can be in a sentence."""

from __future__ import annotations

from thinkalike.errors import DataError, nearest

SIZES = ("small", "large", "crossed")

# A slash gives an irregular plural or past. No past is like its base (hit, put). Nouns and adjectives begin with a
# consonant, so that "a" goes with all of them.
SMALL = {
    "female": "woman girl princess queen mother daughter sister wife/wives bride widow waitress witch niece lady "
    "nun duchess hostess grandmother maid goddess",
    "male": "man boy prince king father son brother husband groom widower waiter wizard nephew gentleman monk duke "
    "host grandfather butler god",
    "female names": "Mary Anna Emma Laura Julia Sarah Alice Clara Nora Helen Ruth Grace Lucy Eve Charlotte Rebecca",
    "male names": "John Peter Paul David Thomas Henry Simon Martin Robert Philip Oscar Victor Max Leo Benjamin "
    "Nathaniel",
    "intransitive": "sing/sang play fall/fell vanish sneeze laugh sleep/slept dance smile cough dream swim/swam "
    "run/ran jump cry sit/sat yawn travel complain disappear hesitate rest wait work",
    "transitive": "see/saw admire greet help love call thank follow praise visit know/knew find/found hire blame "
    "warn trust miss forgive/forgave watch meet/met invite ignore recognize catch/caught",
}
MORE = {  # what the large grammar adds
    "female": "granddaughter stepmother stepsister countess baroness priestess stewardess policewoman businesswoman "
    "saleswoman sportswoman spokeswoman councilwoman noblewoman horsewoman schoolgirl ballerina landlady milkmaid "
    "bridesmaid godmother goddaughter sorceress shepherdess seamstress mermaid matron governess cowgirl",
    "male": "grandson stepfather stepbrother count baron priest steward policeman businessman cowboy salesman "
    "sportsman spokesman councilman nobleman horseman schoolboy hero landlord milkman bridegroom godfather godson "
    "sorcerer shepherd knight fisherman lad bachelor",
    "neither": "teacher doctor student pilot nurse singer dancer painter baker farmer soldier lawyer writer "
    "neighbor child/children tailor driver sailor poet cook guard guest visitor stranger tourist scientist cat dog "
    "horse bird fox wolf/wolves rabbit bear lion tiger monkey parrot mouse/mice goose/geese donkey pony turtle",
    "female names": "Susan Linda Karen Nancy Betty Margaret Sandra Carol Diana Amy Olivia Rachel Maria Catherine "
    "Hannah Victoria Martha Irene Rose Judith Jane Sophia Isabel Amelia Ella Zoe Nina Vera Stella Ivy Agnes Claire "
    "Daisy Fiona",
    "male names": "James Michael William Richard Joseph Charles Daniel Matthew Anthony Mark Steven Andrew Kenneth "
    "Kevin Brian George Edward Ronald Timothy Jason Ryan Jacob Gary Nicholas Eric Jonathan Scott Samuel Gregory "
    "Frank Hugo",
    "intransitive": "walk arrive whisper shout kneel/knelt nod/nodded blush faint stumble hide/hid shiver snore "
    "giggle sigh agree weep/wept argue wander stay breathe listen speak/spoke talk think/thought rise/rose march "
    "sail ride/rode float bow mutter groan scream tremble limp hurry pause return pray joke fail succeed retire "
    "suffer",
    "transitive": "kiss hug/hugged touch push pull kick carry lead/led teach/taught accuse amuse annoy attack avoid "
    "chase bother bring/brought comfort defend describe disturb envy examine fear fight/fought frighten hear/heard "
    "hold/held inspire insult interview judge leave/left like mention nominate notice obey pity protect punish "
    "question remember rescue respect scare shock surprise tease understand/understood want welcome",
    "adjectives": "tall short young brave clever kind happy sad quiet loud strong weak rich poor famous lazy polite "
    "rude proud shy tired busy calm cheerful curious friendly gentle nervous patient serious silly wise lucky "
    "careful modest noble fierce hungry thirsty sleepy beautiful handsome mysterious sensible stubborn talented "
    "wonderful charming",
    "places": "garden kitchen market library station museum castle village forest park school church hotel harbor "
    "bakery barn theater tower palace farm hospital tunnel cave cellar courtyard desert field house jungle lobby "
    "meadow cabin monastery prison restaurant shop stable studio temple tent valley warehouse cottage mansion",
}
DETERMINERS = {"either": "the no", "singular": "a this that every", "plural": "these those many few"}
CROSSED = {  # so few that all of their combinations are sentences to work with
    "female": "woman", "male": "man", "intransitive": "sing/sang fall/fell", "transitive": "see/saw", "either": "the",
}  # fmt: skip
PREPOSITIONS = "in near behind beside outside"

Lexicon = dict[str, list[str]]


def lexicon(size: str) -> Lexicon:
    """Return the words of the small, the large or the crossed grammar, by group.

    Raises:
        DataError: there is no such size.
    """
    if size not in SIZES:
        raise DataError(f"size={size} is not known; {nearest(size, SIZES)}")
    parts = {"small": [SMALL, DETERMINERS], "large": [SMALL, MORE, DETERMINERS], "crossed": [CROSSED]}[size]
    return {group: " ".join(part.get(group, "") for part in parts).split() for group in [*MORE, *DETERMINERS]}
