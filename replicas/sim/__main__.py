"""`python -m replicas.sim`: see `replicas/sim_server/command.py`."""

from replicas.sim_server.command import main

if __name__ == "__main__":
    main()
