"""An emulated network: ranks on hosts of their own (network namespaces), joined by links of known rate and delay."""
