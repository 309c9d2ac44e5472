"""What audits proved before, and when that may be believed: the memory of `dledger audit watch`.

    stamps      what tells that a file is the one it was       program   which code proved it
    kept        results as bytes                               store     where they lie, and history
    pace        whose turn it is to be read again
    recalling   the passes of an audit that reads only the rest
    remembering one audit with it, doubts included             history   rounds, as values

ADR 35 holds the rules. It reads through `reading`, runs on `engines` and calls `proof`, whose
verdicts it never makes itself; `showing` draws its history and `commands` calls it.
"""
