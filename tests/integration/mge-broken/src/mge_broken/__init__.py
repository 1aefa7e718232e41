"""Plugins that do not work. The core, and all other plugins, do."""

from mge.plugin import HostBackend, hookimpl


class Old(HostBackend):
    """Made for another version of the plugin interface."""

    MGE_PLUGIN_API = (9, 0)
    name = "broken_api"


class Hooks:
    """A hook whose name is no name of mge's."""

    @hookimpl
    def mge_graph_pases(self, device, level):
        return []
