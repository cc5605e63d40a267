# SPDX-License-Identifier: MIT
# spillway/_params/__init__.py - parameters with bytes on drives
