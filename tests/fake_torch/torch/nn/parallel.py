class DistributedDataParallel:
    pass
