"""
The in-tree plugins: a folder an extension point, a file a plugin; they know only `epp.framework`.
"""
