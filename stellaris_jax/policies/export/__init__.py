"""Exported policies: one file each, written from a run and readable without the packages that training needs."""
