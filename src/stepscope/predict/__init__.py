"""What a cell will do before it runs. So far: the specs of its plugins put together."""
