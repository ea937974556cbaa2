"""Several processes behind one port: a supervisor without traffic, and N ordinary servers that know each other.

Each session is owned by one process; a request of it that came to another is forwarded, once. What changes the state
of all (workers, what plugins say by ``router.tell_all``) goes through the supervisor, which writes it to every process
in the same order. What is consistent and what is approximate: docs/explanation/several-processes.md.
"""

from router_core.processes.supervisor import serve_in_processes

__all__ = ["serve_in_processes"]
