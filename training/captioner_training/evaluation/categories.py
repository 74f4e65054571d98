"""COCO's 80 categories, and the words by which English captions name them.

The synonyms follow the list of Rohrbach et al. 2018 ("Object Hallucination in Image Captioning"),
shortened to words that captions use; people are named by PERSON_WORDS.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

__all__ = ["CATEGORIES", "PERSON_WORDS", "Mention", "mentions", "named_categories"]

_PEOPLE = """
person persons people humans someone somebody individuals
man men woman women guy guys lady ladies gentleman gentlemen dude dudes adults males females
boy boys girl girls child children kid kids baby babies toddler toddlers infant infants
teenager teenagers teen teens youths youngster youngsters
family families mother mothers father fathers mom moms dad dads parent parents
son sons daughter daughters brother brothers sister sisters grandmother grandfather
husband wife friend friends bride brides groom grooms groomsmen bridesmaid bridesmaids
crowd crowds audience spectator spectators onlooker onlookers pedestrians passengers
player players athlete athletes teammate teammates opponent opponents competitor competitors
batter batters pitcher pitchers catcher catchers hitter baseman batsman umpire umpires
referee referees goalie goalkeeper footballer footballers ballplayer quarterback
skateboarder skateboarders skater skaters rollerblader snowboarder snowboarders
boarder boarders skier skiers skiier skiiers surfer surfers windsurfer wakeboarder waterskier
swimmer swimmers diver divers kayaker kayakers rower rowers sailor sailors
rider riders biker bikers bicyclist bicyclists cyclist cyclists motorcyclist motorcyclists
racer racers jockey jockeys horseman runner runners jogger joggers
hiker hikers climber climbers backpacker backpackers mountaineer
wrestler wrestlers gymnast acrobat cheerleader cheerleaders
worker workers officer officers policeman policemen soldier soldiers fireman firemen
firefighter firefighters driver drivers chef chefs waiter waitress bartender farmer farmers
fisherman fishermen vendor vendors customer customers shopper shoppers tourist tourists
student students teacher instructor businessman businesswoman businessmen doctor nurse
photographer photographers cameraman artist artists musician musicians singer singers
guitarist drummer dancer dancers performer performers clown clowns
"""
# Words that name people in English captions, after COCO's and Flickr8k's. Left out: words that as
# often name something else there ("male" player, "passenger" train, "coach" bus, "boxer" dog,
# "fighter" jet, "couple" of birds, "team" uniform, "cowboy" hat), and pronouns: they point back.
PERSON_WORDS: frozenset[str] = frozenset(_PEOPLE.split())

# A line for each category: its name, then other names of it, in the singular.
_SYNONYMS = """
bicycle, bike, unicycle, tricycle
car, automobile, van, minivan, sedan, suv, jeep, taxi, cab, limo
motorcycle, scooter, motor bike, motor cycle, motorbike, moped, dirt bike
airplane, jetliner, plane, aircraft, jet, biplane, seaplane, air plane
bus, minibus, double decker
train, locomotive, tram, subway train
truck, pickup, lorry, firetruck, semi, tractor trailer
boat, ship, kayak, canoe, sailboat, ferry, raft, yacht, rowboat, gondola
traffic light, street light, traffic signal, stop light, streetlight, stoplight
fire hydrant, hydrant
stop sign
parking meter
bench, pew
bird, ostrich, owl, seagull, goose, duck, parrot, pigeon, swan, eagle, hawk, rooster, chicken
cat, kitten, kitty
dog, puppy, poodle, terrier, retriever, labrador, dachshund, collie, bulldog
horse, colt, pony, foal, mare, stallion, mule
sheep, lamb, ram, ewe
cow, cattle, ox, calf, bull, heifer
elephant
bear, panda, polar bear
zebra
giraffe
backpack, knapsack, rucksack
umbrella, parasol
handbag, purse, hand bag, tote bag
tie, necktie, bow tie, bowtie
suitcase, suit case, luggage
frisbee
skis, ski
snowboard
sports ball, soccer ball, tennis ball, baseball ball, basketball, football, volleyball, beach ball
kite
baseball bat
baseball glove, mitt, baseball mitt
skateboard
surfboard, surf board, longboard, wakeboard
tennis racket, racket, racquet, tennis racquet
bottle
wine glass
cup, mug
fork
knife, pocketknife
spoon
bowl
banana
apple
sandwich, burger, cheeseburger, hamburger, sub sandwich
orange
broccoli
carrot
hot dog, hotdog
pizza
donut, doughnut, bagel
cake, cupcake, cheesecake, birthday cake
chair, armchair, stool, recliner
couch, sofa, loveseat, futon
potted plant, houseplant, house plant, plant pot
bed, bunk bed
dining table, table, desk, kitchen table
toilet, urinal, commode
tv, television, tv set, monitor, flat screen
laptop, laptop computer, notebook computer
mouse, computer mouse
remote, remote control, game controller
keyboard
cell phone, phone, cellphone, smartphone, mobile phone, smart phone, telephone
microwave
oven, stove, stovetop
toaster
sink
refrigerator, fridge, freezer
book
clock
vase
scissors
teddy bear, teddy, stuffed bear
hair drier, hair dryer, blow dryer, hairdryer
toothbrush, tooth brush
"""
_PLURALS = {
    "goose": "geese", "ox": "oxen", "calf": "calves", "knife": "knives", "mouse": "mice",
    "bus": "buses", "puppy": "puppies", "kitty": "kitties", "pony": "ponies", "ferry": "ferries",
}  # fmt: skip
# Words beside which another word names something else, or nothing of the list.
_OTHERWISE = """
train track, train tracks, train station, bus stop, bus station, car seat, boat dock, cat litter
toilet paper, orange juice, orange shirt, orange jacket, orange vest, apple juice, computer keyboard
baseball field, baseball game, tennis court, football game, football field, basketball court
basketball game, clock tower, bed sheets, table cloth, phone booth, book bag, book shelf, cow boy
duck pond
""".replace("\n", ",")

CATEGORIES = (
    "person",
    *(line.split(",")[0].strip() for line in _SYNONYMS.strip().splitlines()),
)


@cache
def _names() -> dict[tuple[str, ...], str]:
    """Give the category of each name, as words; "" for what only looks like a name."""
    found: dict[tuple[str, ...], str] = {(word,): "person" for word in PERSON_WORDS}
    for line in _SYNONYMS.strip().splitlines():
        category, *others = (name.strip() for name in line.split(","))
        for name in (category, *others):
            *before, last = name.split()
            ending = "es" if last.endswith(("s", "x", "ch", "sh")) else "s"
            for form in (last, _PLURALS.get(last, last + ending)):
                found[(*before, form)] = category
    for name in _OTHERWISE.split(","):
        if name.strip():
            found[tuple(name.split())] = ""
    # What the second word of these says counts: it is a keyboard; and a clock on a tower is one.
    for player in ("player", "players"):
        found["football", player] = found["basketball", player] = "person"
    found["computer", "keyboard"] = "keyboard"
    found["clock", "tower"] = "clock"
    return found


class Mention(NamedTuple):
    """A category that a caption names with its words from `first` to before `end`."""

    category: str
    first: int
    end: int


def mentions(words: Sequence[str]) -> list[Mention]:
    """Find the categories that a caption names, in its order.

    >>> mentions("two men with a hot dog beside train tracks".split())
    [Mention(category='person', first=1, end=2), Mention(category='hot dog', first=4, end=6)]
    """
    names, found, at = _names(), [], 0
    while at < len(words):
        # A name of two words goes first: a hot dog is no dog.
        size = 2 if at + 2 <= len(words) and tuple(words[at : at + 2]) in names else 1
        if category := names.get(tuple(words[at : at + size])):
            found.append(Mention(category, at, at + size))
        at += size
    return found


def named_categories(words: Sequence[str]) -> list[str]:
    """List the categories that a caption names, once for each mention."""
    return [one.category for one in mentions(words)]
