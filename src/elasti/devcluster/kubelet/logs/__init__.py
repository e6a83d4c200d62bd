"""What containers print: kept, and read again."""
