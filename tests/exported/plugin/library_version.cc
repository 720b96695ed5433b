extern const int library_version;
const int library_version = VERSION;
