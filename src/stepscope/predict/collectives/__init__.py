"""Collectives on NCCL and RCCL from the hardware's specification alone. Offline."""
