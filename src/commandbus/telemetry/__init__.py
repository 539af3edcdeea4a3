"""What is measured of a running process."""
