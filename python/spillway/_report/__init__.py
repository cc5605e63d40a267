# SPDX-License-Identifier: MIT
# spillway/_report/__init__.py - a training run as HTML, JSON, notebook cell or timeline
