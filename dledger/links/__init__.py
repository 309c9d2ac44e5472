"""The streams between two nodes as pure state machines: no sockets, no clock, no randomness.

A node has two directions with each peer. The stream that it dials carries its requests and the
peer's answers to them (`DialedLink`); the streams that the peer dials carry the rest
(`AcceptedLinks`). Both are given what happened and the time, and hand out what is to be done:

    dialed:  idle ─start─> dialing ─greeted─> up ─ended, silent─> dialing …
                             │  ▲
                  fails fast ▼  │ in time, or at a sign of life
                          backing off, refused

    accepted: Hello ─> waiting ─first message─> adopted ─ended, replaced, abandoned─> gone

Each call has a number, its generation, which is never given twice; what is heard of a call that
is over changes nothing. Why the rules are what they are: docs/adr/0018-peer-links.md.
"""

from dledger.links.accepted import AcceptedLinks
from dledger.links.dialed import DialedLink, Phase
from dledger.links.effects import Adopted, Broken, Dial, Effect, End, Ping, Why
from dledger.links.times import LinkTimes

__all__ = [
    "AcceptedLinks",
    "Adopted",
    "Broken",
    "Dial",
    "DialedLink",
    "Effect",
    "End",
    "LinkTimes",
    "Phase",
    "Ping",
    "Why",
]
