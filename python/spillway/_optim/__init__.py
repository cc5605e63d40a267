# SPDX-License-Identifier: MIT
# spillway/_optim/__init__.py - optimizer state as tiles in records
