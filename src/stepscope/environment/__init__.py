"""What this machine is: probes that collect facts, the link topology, and checks over the facts. No torch.

``probes/`` one file per probe, ``checks/`` one file per check, :func:`stepscope.environment.collect.collect` runs them.
"""
