"""Reports: figures, tables and pages from run directories."""
