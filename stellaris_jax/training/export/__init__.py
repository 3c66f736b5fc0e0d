"""Policies to carry away: one file each, written from a run, and read without what training takes."""
