# SPDX-License-Identifier: MIT
# spillway/_report/__init__.py - a run as HTML, JSON, notebook cell or timeline
