"""What a cell will do before it runs. So far: the promises of its plugins put together."""
