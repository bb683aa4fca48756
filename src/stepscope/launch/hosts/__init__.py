"""Several hosts without a scheduler: reached over ssh, ranks on all of them, their records on this machine."""
