"""The process that renders figures as images, shared by all sessions."""

import streamlit as st

from kvlab.views.base import export

# The path of Chromium, if installed; looked up again after a minute.
browser = st.cache_data(ttl=60, show_spinner=False)(export.find_browser)
# The server's image writer; its Chromium starts with the first image and stops with the server.
image_writer = st.cache_resource(show_spinner=False, on_release=export.ImageWriter.close)(export.ImageWriter)
