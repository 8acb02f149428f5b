"""vmgpu carves GPU hosts into libvirt VMs, queues requests, and captures VMs into private images."""

__version__ = "0.1.0"
