"""What peers are made of; these are no peers themselves."""
