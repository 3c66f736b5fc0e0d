"""What this machine can do, beside peers; not part of the installed package."""
