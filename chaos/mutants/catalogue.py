"""The defects: where, what is changed into what, and which seed is known to find it.

Each breaks one rule that the project states somewhere: a rule of the Raft paper, of the durability
page, or of the broker's promises. The text to change must occur exactly once in its file, so that
a change of the code that moves it is noticed. `rules` holds them, a module a room of the house.
"""

from __future__ import annotations

from chaos.mutants.rules.administration import ADMINISTRATION
from chaos.mutants.rules.applications import seen_by_applications
from chaos.mutants.rules.asked_again import ASKED_AGAIN
from chaos.mutants.rules.attempts import ATTEMPTS
from chaos.mutants.rules.auditing import AUDITING
from chaos.mutants.rules.audits import AUDITS
from chaos.mutants.rules.backups import BACKUPS
from chaos.mutants.rules.beginnings import BEGINNINGS
from chaos.mutants.rules.bounds import BOUNDS
from chaos.mutants.rules.client import CLIENT
from chaos.mutants.rules.clock import CLOCK
from chaos.mutants.rules.consumers import CONSUMERS
from chaos.mutants.rules.copies import COPIES
from chaos.mutants.rules.core import CORE
from chaos.mutants.rules.deliveries import DELIVERIES
from chaos.mutants.rules.delivery_audits import DELIVERY_AUDITS
from chaos.mutants.rules.disks import DISKS
from chaos.mutants.rules.divergence import DIVERGENCE
from chaos.mutants.rules.doors import DOORS
from chaos.mutants.rules.driver import DRIVER
from chaos.mutants.rules.entering import ENTERING
from chaos.mutants.rules.excuses import EXCUSES
from chaos.mutants.rules.fakes import FAKES
from chaos.mutants.rules.fast_way import FAST_WAY
from chaos.mutants.rules.filters import FILTERS
from chaos.mutants.rules.gaps import GAPS
from chaos.mutants.rules.groups import GROUPS
from chaos.mutants.rules.judging import JUDGING
from chaos.mutants.rules.keeping import KEEPING
from chaos.mutants.rules.last_resort import LAST_RESORT
from chaos.mutants.rules.later_logs import LATER_LOGS
from chaos.mutants.rules.later_starts import LATER_STARTS
from chaos.mutants.rules.leader import LEADER
from chaos.mutants.rules.leashes import LEASHES
from chaos.mutants.rules.levels import LEVELS
from chaos.mutants.rules.links import LINKS
from chaos.mutants.rules.log_start import LOG_START
from chaos.mutants.rules.members import MEMBERS
from chaos.mutants.rules.offline_repairs import OFFLINE_REPAIRS
from chaos.mutants.rules.patience import PATIENCE
from chaos.mutants.rules.permissions import PERMISSIONS
from chaos.mutants.rules.preference import PREFERENCE
from chaos.mutants.rules.reading import READING
from chaos.mutants.rules.repairs import REPAIRS
from chaos.mutants.rules.replica import REPLICA
from chaos.mutants.rules.resizing import RESIZING
from chaos.mutants.rules.retention import RETENTION
from chaos.mutants.rules.retrying import RETRYING
from chaos.mutants.rules.seals import SEALS
from chaos.mutants.rules.sending import SENDING
from chaos.mutants.rules.snapshots import SNAPSHOTS
from chaos.mutants.rules.state import STATE
from chaos.mutants.rules.store import STORE
from chaos.mutants.rules.strangers import STRANGERS
from chaos.mutants.rules.tables import TABLES
from chaos.mutants.rules.topic_tables import TOPIC_TABLES
from chaos.mutants.rules.turns import TURNS
from chaos.mutants.rules.units import UNITS
from chaos.mutants.rules.upkeep import UPKEEP
from chaos.mutants.rules.verdicts import VERDICTS

_RULES = (
    *(*CORE, *DRIVER, *CLOCK, *LINKS, *STORE, *LEADER),
    *(*STATE, *READING, *REPLICA, *CLIENT, *DOORS, *STRANGERS, *DISKS, *COPIES, *JUDGING, *AUDITS),
    *AUDITING,
    *DELIVERY_AUDITS,
    *MEMBERS,
    *PREFERENCE,
    *PATIENCE,
    *SNAPSHOTS,
    *LOG_START,
    *BEGINNINGS,
    *LATER_LOGS,
    *LEVELS,
    *LATER_STARTS,
    *OFFLINE_REPAIRS,
    *BACKUPS,
    *RETENTION,
    *PERMISSIONS,
    *GROUPS,
    *ADMINISTRATION,
    *RETRYING,
    *ATTEMPTS,
    *RESIZING,
    *SEALS,
    *UPKEEP,
    *REPAIRS,
    *GAPS,
    *DIVERGENCE,
    *TABLES,
    *KEEPING,
    *FAST_WAY,
    *TOPIC_TABLES,
    *TURNS,
    *SENDING,
    *UNITS,
    *LAST_RESORT,
    *CONSUMERS,
    *DELIVERIES,
    *ASKED_AGAIN,
    *FILTERS,
    *VERDICTS,
    *EXCUSES,
    *FAKES,
    *LEASHES,
    *BOUNDS,
    *ENTERING,
)

MUTANTS = tuple(seen_by_applications(_RULES))
