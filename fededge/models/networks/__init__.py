"""The networks of the zoo, one file each."""
