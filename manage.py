#!/usr/bin/env python3
"""Entry point for Django's management commands (`runbackend`, `smoke`, `check`, `spectacular`)."""

import os
import sys

from django.core.management import execute_from_command_line

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "openjev_site.settings")
    execute_from_command_line(sys.argv)
