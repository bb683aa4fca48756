"""What this machine is: probes that collect facts, the link topology, and checks over the facts. No torch.

``probes/`` one file per probe, ``checks/`` one file per check, :func:`stepscope.machine.collect.collect` runs them.
"""
