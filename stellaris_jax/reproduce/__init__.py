"""The papers' evaluations redone: what each figure trains, what the paper shows there, and what comes out here."""
