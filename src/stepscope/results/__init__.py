"""What a path holds, opened and joined, and every question about results answered once."""
