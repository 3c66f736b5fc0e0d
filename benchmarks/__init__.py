"""Speed of this machine, beside other programs; not part of the installed package."""
