"""
The discovery that reads a file: strict YAML, entries, addresses of DNS names, and what changed.
"""

from epp_plugins.discoveries.static_file.discovery import FileDiscovery

__all__ = ["FileDiscovery"]
