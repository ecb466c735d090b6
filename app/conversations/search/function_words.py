"""Function words of the main languages, which say little about what a question looks for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from app.conversations.search.words import normalised

_ENGLISH = """
a about above after again all also am an and any are as at be because been before being below
between both but by can could d did didn do does doesn doing don done down during each either else
few for from further had has hasn have haven having he her here hers herself him himself his how i
if in into is isn it its itself just ll m may me might more most must my myself no nor not now of
off on once only or other our ours ourselves out over own please re s same shall she should so some
such t than that the their theirs them themselves then there these they this those through to too
under until up upon us ve very was wasn we were weren what when where whether which while who whom
whose why will with won would wouldn you your yours yourself
"""
_GERMAN = """
aber als am an auch auf aus bei bin bis bist da damit dann das dass dein deine dem den der des dich
die dies diese dieser dieses dir du durch ein eine einem einen einer eines er es euch euer fur hab
habe haben hat hatte hatten hattest ich ihr ihre im in ist ja kann kannst kein keine konnen man mein
meine mich mir mit nach nicht noch nur ob oder ohne schon sein seine seit sich sie sind so uber um
und uns unser unter vom von vor wann war waren warum was weil welche welchem welchen welcher welches
wem wen wenn wer werden wie wieso wir wird wo wohin worden wurde wurden zu zum zur
"""
_FRENCH = """
a ai ainsi as au aux avec avons avez avait ce cela ces cet cette ceux chez comment d dans de depuis
des donc du elle elles en entre es est et etaient etait etre eu eux fait fut il ils j je l la le les
leur leurs lui m ma mais me meme mes moi mon n ne nos notre nous on ont ou par pas peut plus pour
pourquoi qu quand que quel quelle quelles quels qui quoi s sa sans se sera ses si son sont sous sur
t ta te tes toi ton tu un une vos votre vous y
"""
_SPANISH = """
a al algo como con cual cuales cuando cuanto cuantos de del desde donde dos el ella ellas ellos en
entre era eran es esa ese eso esta estaba este esto fue fueron ha habia han hasta hay he la las le
les lo los mas me mi mis muy no nos o para pero por porque que quien quienes se ser si sin sobre son
su sus tambien te tiene tu tus un una unos y ya yo
"""
_PORTUGUESE = """
a ao aos as com como da das de del dele dela do dos e ela elas ele eles em entre era essa esse esta
este eu foi foram ha isso isto ja la lhe mais mas me meu minha muito na nao nas no nos o onde os ou
para pela pelo por porque qual quais quando quanto que quem se sem ser seu seus sobre sua suas
tambem tem tu um uma voce
"""
_ITALIAN = """
a ai al alla anche c che chi ci come con cosa cui d da dal dalla de dei del della delle di dove e
era erano gli ha hai hanno ho i il in io l la le lei lo loro lui ma mi mia mio ne nei nel nella noi
non o per perche piu qual quale quali quando quanto quello questo se sei si sono stata stato su sua
sulla suo ti tu un una uno voi
"""
_DUTCH = """
aan al als bij dan dat de deze die dit door een en er had hadden heb hebben heeft het hij hoe hun ik
in is je jij jouw kan maar me met mij mijn naar niet nog nu of om ons onze ook op over te tot u uit
van voor waar waarom wanneer was wat we welk welke werd wie wij worden wordt ze zich zij zijn zo
"""
_RUSSIAN = """
а без более был была были было быть в вам вас во вот все всех вы где да для до его ее если есть еще
же за здесь и из или им их к как какая какие какой какую когда который кто куда ли мне мои мой моя
мы на над нам нас наш не него нее нет ни но о об он она они оно от очень по под почему при с сам со
так там те тебе тебя то того тоже той только том ты у уже чего чем что чтобы эта эти это этот я
"""  # noqa: RUF001 - Cyrillic is meant
_LANGUAGES: Final[Sequence[frozenset[str]]] = tuple(
    frozenset(map(normalised, words.split()))
    for words in (
        *(_ENGLISH, _GERMAN, _FRENCH, _SPANISH),
        *(_PORTUGUESE, _ITALIAN, _DUTCH, _RUSSIAN),
    )
)


def function_words(words: Sequence[str]) -> frozenset[str]:
    """Return the function words of the language that a text has most of; words in normal form.

    One language at a time: the French *car* is an English noun. Among equals English is first.
    """
    return max((language.intersection(words) for language in _LANGUAGES), key=len)
