class DataLoader:
    pass
