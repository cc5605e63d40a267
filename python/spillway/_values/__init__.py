# SPDX-License-Identifier: MIT
# spillway/_values/__init__.py - plain values: as bytes, and as state that a record can have
