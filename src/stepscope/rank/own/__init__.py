"""A user's own model: fed and measured."""
