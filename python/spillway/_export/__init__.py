# SPDX-License-Identifier: MIT
# spillway/_export/__init__.py - commits as files that other software reads
