"""Captioner as a Hugging Face Space; README.md beside this file is its card."""

from captioner_serving import gradio_demo

# A Space runs behind proxies in a private network and is shown in a frame.
demo = gradio_demo(trusted_proxies=("10.0.0.0/8",), frame_ancestors=("https://huggingface.co",))

if __name__ == "__main__":
    demo.launch()
