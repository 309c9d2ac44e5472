"""Who runs tasks: processes of this machine (`engine`) or a Spark cluster (`spark`), by one port.

What a task does is never known here, so no room that has work to do is imported. `choice` makes the
engine that a command asks for, Spark's only then; `placed` keeps a host's tasks on one machine;
`standstill` tells a job that nobody runs any more; `package` names what executors need of us.
"""
