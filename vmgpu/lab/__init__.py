"""What turns a bare machine into one that can show vmgpu: guest images, a hypervisor of its own, the demo."""
