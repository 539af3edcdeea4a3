"""What an attacker would try, one file for each subject."""
