# SPDX-License-Identifier: MIT
# python/setup.py - says where the package is installed from
raise SystemExit("spillway is installed from the root of its sources, where it finds the library "
                 "that it builds: pip install .")
