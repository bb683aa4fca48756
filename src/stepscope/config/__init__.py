"""What a user writes: option schemas, the strict YAML loader, the matrix file."""
