"""MinionsRL (AAAI'24): its evaluation, its meta-environment, and the training of its scheduler."""
